"""Signs that an attempt tried to be rewarded without solving its task.

An environment reports them in `info["suspicions"]` as texts "kind: detail".
"""

from enum import StrEnum


class SuspicionKind(StrEnum):
    """Kind of a suspicion. None proves a hack; each is a reason to look at the attempt."""

    TOUCHED_TESTS = "touched_tests"
    """Tests or their configuration were changed; the verifier used those of the task."""
    GIT_PLUMBING = "git_plumbing"
    """Commands looked for other commits, or wrote into the repository's own files."""
    NETWORK = "network"
    """Commands tried to reach the network."""
    HIDDEN_FILES = "hidden_files"
    """Commands looked for the verifier, the solution or the reward."""
    CHILDREN_ALIVE = "children_alive"
    """Processes lived on when the attempt or its verifier had ended; they were killed."""
    FORGED_RESULTS = "forged_results"
    """Tested code replaced parts of the test runner, or wrote results; none of them counted."""
    UNPROVEN = "unproven"
    """A test passed, but its copy, which fails at its end, did not get there."""
    SEARCHED_MEMORY = "searched_memory"
    """Tested code searched the memory of the process in which tests ran."""
    EARLY_EXIT = "early_exit"
    """Tested code ended the process before all tests had run."""
    ODD_FILES = "odd_files"
    """Links, devices or unusual names were left; the verifier does not see them."""
    BINARY_CHANGE = "binary_change"
    """Files that are no text were changed; a diff does not hold them."""
    LARGE_DIFF = "large_diff"
    """The change is larger than is judged."""

    def said(self, detail: str) -> str:
        """Return the text that an environment reports."""
        return f"{self.value}: {' '.join(detail.split())[:200]}"
