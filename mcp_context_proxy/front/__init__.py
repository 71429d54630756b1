"""Where hosts connect: stdio, and HTTP with its two transports."""
