"""Compares what two runs wrote under SYMM_AUDIT.

files     the files of a run
compare   the first call at which two runs differ
cli       the command line
"""
