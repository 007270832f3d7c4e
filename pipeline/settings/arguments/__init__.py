"""What settings may give a named function as arguments: the classes by which each kind declares them, with type, unit,
bounds, default and meaning. The tables by name: pipeline/settings/declared.py."""
