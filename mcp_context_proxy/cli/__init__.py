"""The command line: one module for each command, or for a few that are close kin.

Commands show and pass on; they decide nothing.
"""
