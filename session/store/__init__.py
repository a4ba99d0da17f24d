"""The conversations of a workspace on disk: opened, cached, written under a fence, ended, found."""
