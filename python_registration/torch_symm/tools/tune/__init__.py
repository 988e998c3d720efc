"""The tuner: measures the algorithms of the collectives here and writes a tuning table.

config      what one run measures, validated
candidates  what a call could be carried out by
worker      what every rank executes
job         where a run stands; what was measured before is kept
table       which candidate gets which sizes, and the rows that say so
report      a line a size and, at the end, what changes
"""
