"""The exception tree. Only the ingress maps it to HTTP.

::

    InfraMindError                 code              HTTP
    |- ConfigError                 config_error      (start-up only)
    |- DatasetError                bad_dataset       (benchmarks only)
    |- SandboxUnavailable          sandbox_unavailable 503
    |- PlanError                   bad_plan          500
    |- RequestError                invalid_request   400
    |  |- BadBudget                invalid_budget    400
    |  |- UnknownModel             model_not_found   404
    |  |- QueryNotFound            query_not_found   404
    |  |- UnsupportedParameter     unsupported_parameter  400
    |  |- BodyTooLarge             body_too_large    413
    |  `- ContextExceeded          context_length_exceeded 400
    |- Overloaded                  overloaded        429
    |- Unavailable                 unavailable       503
    |- ModelUnavailable            model_unavailable 503
    |- DeadlineExceeded            deadline_exceeded 504
    |- LimitExceeded               limit_exceeded    500
    |- MoneyExhausted              money_exhausted   402
    |- QueryCancelled              cancelled         499
    `- NoModelAnswered             no_model_answered 502
"""

from __future__ import annotations


class InfraMindError(Exception):
    """Base of all errors of this project; ``code`` is stable and part of the API."""

    code = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(InfraMindError):
    """A config cannot be used; the message names the file and the key."""

    code = "config_error"


class DatasetError(InfraMindError):
    """A data set cannot be read; the message names the file, the line and the field."""

    code = "bad_dataset"


class SandboxUnavailable(InfraMindError):
    """Generated code cannot be run safely here, so it was not run."""

    code = "sandbox_unavailable"


class PlanError(InfraMindError):
    """A policy returned a plan or a route that cannot be carried out."""

    code = "bad_plan"


class RequestError(InfraMindError):
    """The request cannot be served as it stands; ``param`` names the field at fault."""

    code = "invalid_request"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BadBudget(RequestError):
    code = "invalid_budget"


class UnknownModel(RequestError):
    code = "model_not_found"


class QueryNotFound(RequestError):
    """No such long query is kept, or it is another owner's: the two look the same."""

    code = "query_not_found"


class UnsupportedParameter(RequestError):
    code = "unsupported_parameter"


class BodyTooLarge(RequestError):
    code = "body_too_large"


class ContextExceeded(RequestError):
    """The prompt fits no model of the pool."""

    code = "context_length_exceeded"


class Overloaded(InfraMindError):
    """A bound was reached; try again after ``retry_after_s``."""

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(InfraMindError):
    """A part of the runtime is being started again; try again soon."""

    code = "unavailable"


class ModelUnavailable(InfraMindError):
    """The models that could take a step only failed lately; try again after ``retry_after_s``."""

    code = "model_unavailable"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(InfraMindError):
    code = "deadline_exceeded"


class LimitExceeded(InfraMindError):
    """A per-query cap of calls or tokens was reached before there was an answer."""

    code = "limit_exceeded"


class MoneyExhausted(InfraMindError):
    """What may be spent pays for no model that could take a step; ``retry_after_s`` is set where it
    is the pool's hour that is spent."""

    code = "money_exhausted"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueryCancelled(InfraMindError):
    code = "cancelled"


class NoModelAnswered(InfraMindError):
    """Every model that could take a step failed."""

    code = "no_model_answered"
