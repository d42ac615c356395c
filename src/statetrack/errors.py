"""The one exception for what a user got wrong."""


class UserError(ValueError):
    """A mistake in the input. The message is one sentence that names the thing and what is allowed.

    The command line prints it without a traceback and exits with code 2.
    """


def check_type(what: str, value: object, kinds: type | tuple[type, ...], allowed: str) -> None:
    """Raise a UserError that names `what` unless `value` is one of `kinds`; a bool is no int."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is int):
        raise UserError(f"{what} must be {allowed}; got {type(value).__name__}")
