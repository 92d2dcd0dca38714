"""Log files into a topic: `tidemill ship`.

May import `client`, `storage.files` and what is below them. Read `follow` for how files are
recognised through rotation, `shipper` for what is promised about loss and duplicates, `lines` for
how bytes become records, `journal` for what is remembered.
"""
