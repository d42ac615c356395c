"""The one exception for what a user got wrong."""


class UserError(ValueError):
    """A mistake in the input. The message is one sentence that names the thing and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """
