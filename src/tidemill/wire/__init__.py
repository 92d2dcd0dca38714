"""Bytes to values and back, with no I/O: what the protocol says, and nothing about what it means.

May import: `errors`, `types`, `config` and the plain modules below them. Where to start reading:

* `messages/` declares every request and response, one family per module, all versions in one class;
* `declare` is the small language they are written in, `plan`, `encoder`, `decoder` and `compile`
  turn a declaration and a version into one function each way, and `codec` is the door to them;
* `apis` is the table of APIs, `frame` puts headers and sizes around messages;
* `batch`, `records`, `compression` and `legacy` know what is inside a records field.
"""
