"""VGG-11 with batch norm for 32×32 images: K. Simonyan and A. Zisserman, 2014 (arXiv 1409.1556), configuration A."""

from torch import nn

from batchgrowth_trainer.workloads.wide_resnet import initialise

# Channels of the convolutions, in groups; pooling after each group halves the side, from 32 to 1.
GROUPS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(classes: int = 10) -> nn.Sequential:
    """Images (N, 3, 32, 32) -> class scores (N, classes): 9.2 million weights, one linear layer at the end."""
    layers: list[nn.Module] = []
    inputs = 3
    for group in GROUPS:
        for outputs in group:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes))
    initialise(model)
    return model
