"""The contract's own numbers in the user's trackers."""

from slav1.recorder import Recorder


class LoopFigures:
    """Sums up what a rank's steps took, whenever the loop logs something."""

    def __init__(self, recorder: Recorder) -> None:
        """Starts with what is written from now on.

        Args:
            recorder: Where the steps are written.
        """
        # They need torchmetrics, which nobody else does.
        from slav1.metrics import RankFigures

        self._recorder = recorder
        self._figures = RankFigures(recorder)

    def read(self) -> dict[str, float]:
        """What is known now, by the names that trackers show."""
        sample = self._recorder.last_sample()
        times_s = {} if sample is None else sample.times_s()
        return {f"sla/{name}": value for name, value in {**times_s, **self._figures.read()}.items()}
