"""The protocol as pure functions: framing, envelopes, eras. No I/O, no knowledge of who speaks."""
