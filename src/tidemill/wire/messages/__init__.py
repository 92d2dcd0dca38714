"""Every request and response of the protocol, one family per module.

A class serves all versions of its message: a field says in which versions it is on the wire, and
has its default in the others. Names are the protocol's own, in snake case. To find the class for an
API key, ask `tidemill.wire.apis`; to read the notation, see `tidemill.wire.declare`.

Modules are imported one by one and on demand, so that starting a broker costs no time for messages
that nobody sends: import a class from its module.
"""
