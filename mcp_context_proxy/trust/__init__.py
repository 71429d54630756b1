"""Trust: what was approved, what is dangerous, who may do what, and the record of what was done."""
