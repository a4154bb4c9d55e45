"""A mistake of the user's, told in one line."""


class UserError(Exception):
    """Bad input: the message names the key or file, what was found, what was expected and the
    nearest valid choice."""
