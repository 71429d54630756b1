"""The command line, one module per command. Commands show and pass on; they decide nothing."""
