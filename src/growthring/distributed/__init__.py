"""The processes that train one model together, and the wrappers that they train it through."""
