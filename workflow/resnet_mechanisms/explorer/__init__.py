"""The explorer: one page in which the networks of a study are looked at, two side by side."""
