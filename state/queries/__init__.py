"""What the API reads. One module per noun; each function runs one statement, takes no lock, and answers rows as named
tuples.

JSON columns come as the text that was stored, so that a payload leaves as it came. Instants are aware, in the
session's time zone.
"""
