"""What goes over the wire: framing, envelopes, eras, text. Knows nothing of who speaks."""
