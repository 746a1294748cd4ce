"""`warmlog console`: topics, records, groups and the broker in a browser.

A process of its own, which is a client of the broker as any other: each session is a connection of the user that has
logged in, and can do what that user has the right to. `command` starts it, `safety` decides which requests of a browser
it accepts, `sessions` has the connections, `page` what all pages have in common, and `pages` has each of them.

The pages are NiceGUI's: tables, charts and live updates come from it, and it loads nothing from elsewhere. Nothing asks
the broker while no page is open.
"""
