"""One module for each entry of the menu, with the pages below it; importing it adds them to NiceGUI's application."""
