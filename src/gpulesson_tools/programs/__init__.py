"""A reader's program: on a command line, in a fresh process, and watched while it runs.

=============  ==================================================================================
``arguments``  a command line that ends with a program and the program's own arguments
``process``    a function in a fresh process that ends with all it has started
``execution``  a script or a module, run in this process as Python's command line runs it
``hooks``      what a program does with PyTorch, for those who listen
=============  ==================================================================================
"""
