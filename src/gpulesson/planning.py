"""The former place of :mod:`gpulesson_tools.planning`, which a recorded cell of lesson 10 imports from."""

from gpulesson_tools.planning import __path__ as __path__
