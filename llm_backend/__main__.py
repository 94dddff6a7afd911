"""`python -m llm_backend` is `encore`."""

from llm_backend.cli import main

main()
