from .tasks.arithmetic import ask as _ask

__version__ = "0.1.0"
_ask()                      # before anything is computed


def __getattr__(name):
    "`from grok_nb import fit` works too; torch and the rest are only imported when a name is asked for."
    if name.startswith('_'): raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from importlib import import_module
    try: return getattr(import_module(f'{__name__}.all'), name)
    except AttributeError: raise AttributeError(f'module {__name__!r} has no attribute {name!r}') from None
