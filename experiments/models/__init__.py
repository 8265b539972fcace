"""Built-in models: one file each, with a factory `loss(**options)` that returns `(loss, args)` or `(loss, args, blocks)`.

`args` are shapes, so that no factory allocates its model; `arguments.materialise` makes real ones.
"""
