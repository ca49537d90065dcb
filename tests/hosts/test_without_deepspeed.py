"""What need not be installed, in a process that has not got it."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

# For imports and for the host's own question a package is then not there.
HIDDEN = "import sys; sys.modules['deepspeed'] = None; "


@pytest.mark.parametrize(
    "name", ["sla_accelerate.SLAAccelerator", "sla_accelerate.attach", "sla_lightning.SLACallback"]
)
def test_hosts_do_without_deepspeed(name: str) -> None:
    """
    Where DeepSpeed is not installed both hosts are put under contract all the same.
    """
    module = name.split(".", maxsplit=1)[0]
    asked = "import accelerate.utils; assert not accelerate.utils.is_deepspeed_available()"

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{HIDDEN}import {module}; {name}; {asked}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
