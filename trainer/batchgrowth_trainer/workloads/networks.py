"""The networks for images of 32×32 pixels: WRN and VGG-11.

S. Zagoruyko and N. Komodakis, *Wide Residual Networks*, 2016 (arXiv 1605.07146).
K. Simonyan and A. Zisserman, *Very Deep Convolutional Networks*, 2014 (arXiv 1409.1556): configuration A, to which
batch norm is added.
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

STEM_CHANNELS = 16
# Channels of the convolutions of VGG-11, in groups; pooling after each group halves the side, from 32 to 1.
VGG11_GROUPS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class Block(nn.Module):
    """Table 1's basic-wide block, pre-activation: BN-ReLU-conv, dropout between the convolutions (section 2.4)."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, inputs, H, W) -> (N, outputs, H/stride, W/stride)."""
        active = F.relu(self.bn1(images))
        residual = self.conv2(self.dropout(F.relu(self.bn2(self.conv1(active)))))
        # If the shape changes, the shortcut starts after the shared activation, as in the authors' code.
        straight = images if self.shortcut is None else self.shortcut(active)
        return residual + straight  # type: ignore[no-any-return]


def wide_resnet(depth: int, width: int, dropout: float, classes: int = 10) -> nn.Sequential:
    """Return WRN-depth-width: images (N, 3, 32, 32) -> class scores (N, classes); depth is 6·n + 4."""
    per_group = (depth - 4) // 6
    assert depth == 6 * per_group + 4
    channels = [STEM_CHANNELS, *(STEM_CHANNELS * width * 2**group for group in range(3))]
    groups = []
    for number, (inputs, outputs) in enumerate(pairwise(channels)):
        first = Block(inputs, outputs, stride=1 if number == 0 else 2, dropout=dropout)
        others = [Block(outputs, outputs, stride=1, dropout=dropout) for _ in range(per_group - 1)]
        groups.append(nn.Sequential(first, *others))
    model = nn.Sequential(
        nn.Conv2d(3, STEM_CHANNELS, 3, padding=1, bias=False),
        *groups,
        nn.BatchNorm2d(channels[-1]),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels[-1], classes),
    )
    initialise(model)
    return model


def vgg11(classes: int = 10) -> nn.Sequential:
    """Return VGG-11: images (N, 3, 32, 32) -> class scores (N, classes).

    It has 9.2 million weights, and one linear layer at the end.
    """
    layers: list[nn.Module] = []
    inputs = 3
    for group in VGG11_GROUPS:
        for outputs in group:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes))
    initialise(model)
    return model


def initialise(model: nn.Module) -> None:
    """Initialise the convolutions of a CIFAR-10 model by He's normal distribution (K. He et al., 2015)."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
