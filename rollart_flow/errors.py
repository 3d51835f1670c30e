"""Every error that this library raises on purpose.

    RollartError
    ├── PipelineError (ValueError)          a pipeline that cannot be built; names the node
    ├── SettingsError (ValueError)          a setting or override with a wrong key or value
    ├── MissingExtraError (ImportError)     a backend whose optional packages are not installed
    ├── SchemaError (TypeError)             rows or tables that do not match `schemas/*.json`
    ├── StoreError (OSError)                a run that cannot be read or written
    │   ├── RunNotFoundError (FileNotFoundError)
    │   ├── RunExistsError (FileExistsError)
    │   ├── QueryError (ValueError)         SQL that is wrong, or reads more than the run's tables
    │   ├── RowsLostError                   a process died with rows that are not committed
    │   ├── StoreAwayError                  the server of a store was away for too long
    │   ├── DataFileNotFoundError (FileNotFoundError)   a data file of a table is missing
    │   └── FencedError                     another writer has taken the run over
    ├── EnvironmentFailedError (RuntimeError)   the environment raised or answered invalidly
    ├── EnvironmentTimeoutError (TimeoutError)  the environment did not answer in time
    ├── SandboxError (RuntimeError)             a sandbox that could not be started, or has ended
    │   ├── ImageError                          an image that is refused, nowhere, or damaged
    │   │   └── ImagePullError                  a failed pull of an image; a retry may succeed
    │   └── TaskQuarantinedError                boxes of a task failed too often; it gets no more
    ├── SandboxFileError (OSError)              a file of a sandbox that cannot be read or written
    ├── DiffError (ValueError)                  a diff that is malformed or does not fit its files
    ├── TemplateRefusedError (ValueError)       the chat template refuses the messages
    ├── RewardFailedError (RuntimeError)        the reward function raised, or was not finite
    │   └── RewardNotFiniteError                it returned a number that is NaN or infinite
    ├── RewardTimeoutError (TimeoutError)       a remote reward did not answer by its deadline
    ├── ServerlessError (RuntimeError)          a reward endpoint that refuses a call permanently
    │   ├── ContractError (ValueError)          a message that violates the reward contract
    │   └── EndpointTroubleError (ConnectionError)  it cannot be reached now; a retry may succeed
    ├── EngineError (RuntimeError)              an inference engine died
    │   ├── RequestRefusedError (ValueError)    it refused one request and otherwise works
    │   ├── WorkerAwayError                     no node can run its worker now; it may come back
    │   ├── WorkerLeftError                     its worker was told to stop serving; others serve
    │   └── WorkerLostError                     it died permanently and is not replaced
    ├── UnknownClientError (LookupError)        a restarted coordinator asks its caller to report
    ├── BlockOverError (LookupError)            a restarted source asks for a block that is done
    ├── WeightsError (RuntimeError)             a version that is missing, torn or damaged
    │   ├── VersionMissingError                 a version that is not published, or not yet
    │   └── WeightStoreAwayError                the storage fails now; a retry may succeed
    ├── TrainerError (RuntimeError)             a step or checkpoint that cannot be computed
    │   ├── BatchError (ValueError)             a batch whose values cannot be trained on
    │   └── RanksLostError                      a rank is alone: another one died or hangs
    ├── DeadlockError (RuntimeError)            every task waits and no event can wake one
    └── RunFailedError (RuntimeError)           a run that cannot continue; the message says why
        └── ClusterLostError                    what executes the run is gone with its processes

Each class also inherits the built-in error that callers would catch. Each takes one message, so
that it survives pickling between processes. An error is converted once, where it crosses a
boundary.
"""


class RollartError(Exception):
    """Root of all errors raised on purpose by this library."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class PipelineError(RollartError, ValueError):
    """A pipeline that cannot be built. The message names the node."""


class SettingsError(RollartError, ValueError):
    """A setting or an override with a wrong key or value. The message lists the right keys."""


class MissingExtraError(RollartError, ImportError):
    """A backend whose optional packages are not installed. The message names the extra."""


class SchemaError(RollartError, TypeError):
    """Rows or tables that do not match the declared schema. The message names the column."""


class StoreError(RollartError, OSError):
    """A run that cannot be read or written."""


class RunNotFoundError(StoreError, FileNotFoundError):
    """No run of that name or at that address."""


class RunExistsError(StoreError, FileExistsError):
    """A run of that name exists already."""


class QueryError(StoreError, ValueError):
    """SQL that is wrong, or that would read something besides the tables of its run."""


class RowsLostError(StoreError):
    """A process died with rows that are not committed; whoever has them sends them again."""


class StoreAwayError(StoreError):
    """A store did not answer, or only with errors, however often an operation was repeated."""


class DataFileNotFoundError(StoreError, FileNotFoundError):
    """A data file of a table is missing, or was merged and removed while it was read."""


class FencedError(StoreError):
    """Another writer has taken the run over; this one must stop writing."""


class EnvironmentFailedError(RollartError, RuntimeError):
    """An environment raised or returned an invalid answer."""


class EnvironmentTimeoutError(RollartError, TimeoutError):
    """An environment did not answer within its time limit."""


class SandboxError(RollartError, RuntimeError):
    """A sandbox that could not be started, or has ended; not the failure of a command in it."""


class ImageError(SandboxError):
    """An image of a sandbox that is refused, cannot be built, is nowhere, or is damaged."""


class ImagePullError(ImageError):
    """A pull of an image that failed. A retry may succeed, or another place may have the image."""


class TaskQuarantinedError(SandboxError):
    """The boxes of a task failed too often in a row. The message has the last failure."""


class SandboxFileError(RollartError, OSError):
    """A file of a sandbox that cannot be read or written. The message names the path."""


class DiffError(RollartError, ValueError):
    """A diff that is malformed or does not fit the files. The message names the line or path."""


class TemplateRefusedError(RollartError, ValueError):
    """Messages that the chat template of the model refuses, such as two of the user in a row."""


class RewardFailedError(RollartError, RuntimeError):
    """A reward function raised, or returned something that is not a finite number."""


class RewardNotFiniteError(RewardFailedError):
    """A reward function returned a number that is NaN or infinite."""


class RewardTimeoutError(RollartError, TimeoutError):
    """A remote reward function did not answer by its deadline, or one was not loaded in time."""


class ServerlessError(RollartError, RuntimeError):
    """A reward endpoint refuses a call, and would refuse it again."""


class ContractError(ServerlessError, ValueError):
    """A message that violates the reward contract, or has another version of it."""


class EndpointTroubleError(ServerlessError, ConnectionError):
    """A reward endpoint cannot be reached or is too busy; another try may succeed."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """Wait that the endpoint asked for [s]; 0 if it asked for none."""


class EngineError(RollartError, RuntimeError):
    """An inference engine died or refused a request."""


class RequestRefusedError(EngineError, ValueError):
    """An inference engine refuses a request that no engine can serve; the engine still works."""


class WorkerAwayError(EngineError):
    """An inference worker has no node to run on, and may come back once there is one."""


class WorkerLeftError(EngineError):
    """An inference worker was told to stop serving; other workers serve in its place."""


class WorkerLostError(EngineError):
    """An inference worker is lost permanently: no worker will take over its name."""


class UnknownClientError(RollartError, LookupError):
    """The coordinator restarted and does not know its caller, which has to report to it first."""


class BlockOverError(RollartError, LookupError):
    """A block of a source that the stream has finished with; a restarted source passes it over."""


class WeightsError(RollartError, RuntimeError):
    """A weight version that is missing, torn or damaged."""


class VersionMissingError(WeightsError):
    """A weight version that is not published; it may be soon."""


class WeightStoreAwayError(WeightsError):
    """The storage of weight versions fails or does not answer; another try may succeed."""


class TrainerError(RollartError, RuntimeError):
    """A training step or checkpoint that cannot be computed."""


class BatchError(TrainerError, ValueError):
    """A batch whose values cannot be trained on; training on it again would fail again."""


class RanksLostError(TrainerError):
    """A rank of a trainer cannot reach the others: one of them died or hangs."""


class DeadlockError(RollartError, RuntimeError):
    """Every task waits and no event can wake one. The message lists what each waits for."""


class RunFailedError(RollartError, RuntimeError):
    """A run that cannot continue."""


class ClusterLostError(RunFailedError):
    """A run whose cluster is gone. Its processes cannot be called, ended or started again."""
