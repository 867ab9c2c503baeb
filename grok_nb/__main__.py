"`python -m grok_nb` is `grok-nb`"
from .lab.cli import main

main()
