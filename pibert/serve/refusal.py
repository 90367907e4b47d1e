"""Why a request is not answered: a status, a code and one line of text."""

from typing import Any

STATUS = {
    "malformed": 400,
    "unauthorized": 401,
    "not_found": 404,
    "not_allowed": 405,
    "not_acceptable": 406,
    "slow": 408,
    "too_large": 413,
    "unsupported": 415,
    "wrong_host": 421,
    "invalid": 422,
    "diverged": 422,
    "internal": 500,
    "busy": 503,
    "stopping": 503,
    "timeout": 504,
}
"""The HTTP status of each code."""
FAULT = "the server met a fault of its own; its log has more"


class Refusal(Exception):
    """What the caller is told; the code is a key of ``STATUS``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message

    @property
    def status(self) -> int:
        return STATUS[self.code]

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 503:
            return {"Retry-After": "1"}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}

    def plain(self) -> dict[str, Any]:
        """As the body of the answer."""
        return {"error": {"code": self.code, "message": self.message}}


def refusal_of(error: Exception) -> Refusal:
    """What a caller is told of an error in a prediction; a fault of ours is told as such."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, FloatingPointError):
        return Refusal("diverged", str(error))
    if isinstance(error, ValueError):
        return Refusal("invalid", str(error))
    return Refusal("internal", FAULT)
