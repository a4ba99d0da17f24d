"""Several processes of one gateway: started, watched, replaced, asked; what they count, added up."""
