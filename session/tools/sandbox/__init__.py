"""Confines a command: what it may read and write, the network, its time, memory, processes and output.

``sandbox.SandboxOfDaemon`` finds the one that works here, ``wrap`` turns a command into one that runs in it,
``running.run`` runs it to its end. Whoever talks with a process for long (a server on its stdio) takes
``wrap`` and starts it itself; ``SIGTERM`` to that process ends everything that it started.
"""
