"""Makes the model cluster of this folder importable by its tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
