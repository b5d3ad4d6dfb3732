"""deftrun: starts daemons and workers on all nodes of a run, and ends them together.

launch.py     the launcher itself: one agent a node, output, failures, signals
agent.py      a node's agent: its daemon and its workers
strays.py     processes that workers left behind
arguments.py  the command line
hosts.py      which ranks go to which node
wire.py       the JSON lines between launcher and agents
"""
