"""The protocol as pure functions: framing, envelopes, eras, validation, text."""
