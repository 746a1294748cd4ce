"""Commands about the files of a stopped broker's logs."""
