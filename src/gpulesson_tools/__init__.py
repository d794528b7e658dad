"""Tools for one's own scripts, and for exercises; each is a command of ``python -m gpulesson``.

=============  =========================================================================
``exercises``  ``start``, ``check``, ``submissions``, ``lessons``
``planning``   ``plan``: will a script fit on a GPU, and how fast can it be
``porting``    ``port`` takes a script to a GPU, ``review`` reads one that uses it
``programs``   how they run a reader's program, and watch it
=============  =========================================================================

They stand on :mod:`practice_gpu` and on :mod:`gpulesson`, of which neither imports them.
"""
