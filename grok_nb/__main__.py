"`grok-nb` and `python -m grok_nb`: the imports take seconds, and Ctrl-C ends them without a traceback"
import os
import signal


def main():
    "Run the command line of `grok_nb.lab.cli`."
    before = signal.getsignal(signal.SIGINT)
    # An exception would not do: code that is being imported may catch it, or print it as a warning and go on.
    if before is signal.default_int_handler: signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from grok_nb.lab.cli import main as run
    signal.signal(signal.SIGINT, before)
    run()


if __name__ == '__main__': main()
