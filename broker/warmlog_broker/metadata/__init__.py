"""The metadata log: topics, their settings and placement, blocks of producer ids."""
