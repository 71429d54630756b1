"""Several replicas as one proxy: who is there, where a session is at home, relays, shared contexts, hints."""
