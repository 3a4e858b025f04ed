// Nothing: the target that owns the precompiled header of the programs must have a source.
