"""Remove packages that only torch needs on a GPU from a lock file; `make setup` installs torch separately."""

import re
import sys
from pathlib import Path

ONLY_FOR_CUDA = re.compile(r"(nvidia-|cuda-|triton==|torch==)")


def main() -> None:
    path = Path(sys.argv[1])
    blocks = re.split(r"\n(?=[a-z0-9])", path.read_text())
    kept = [block.rstrip() for block in blocks if not ONLY_FOR_CUDA.match(block)]
    path.write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    main()
