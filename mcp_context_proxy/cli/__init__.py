"""The command line: one module for each command, or a few close kin. Commands show and pass on; they decide nothing."""
