"""One module a figure: `draw(inputs)` reads tables or arrays and returns a Matplotlib figure. Never
a network, never torch.
"""
