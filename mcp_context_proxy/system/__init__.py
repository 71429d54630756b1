"""The process and the machine: threads, signals, memory, descriptors, clocks."""
