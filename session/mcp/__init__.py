"""Servers of the Model Context Protocol: kept up and asked; their tools, as far as they are approved."""
