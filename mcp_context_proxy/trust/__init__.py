"""Trust: approvals, danger classes, rights, and the record of everything that was done."""
