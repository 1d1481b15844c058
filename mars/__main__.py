import sys

from mars.cli import main

sys.exit(main())
