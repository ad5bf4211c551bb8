FROM tensorflow/tensorflow:2.19.0 AS tools
FROM tensorflow/tensorflow:2.19.0-gpu
COPY --from=tools /opt/tools /opt/tools
